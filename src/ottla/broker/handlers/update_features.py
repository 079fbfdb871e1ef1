"""UpdateFeatures v0-2: changes the finalized levels of features (KIP-584).

v1   upgrade type and validate only (KIP-778); v0 can only upgrade, whatever it says about downgrades
v2   no results for single features

ApiVersions shows the levels: clients use them to choose between protocols, for example for transactions (KIP-890).
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.deadline import within
from ottla.broker.services import Context
from ottla.metadata.changes.features import FeatureUpdate
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.UPDATE_FEATURES)
async def update_features(request: UpdateFeaturesRequest, context: Context) -> UpdateFeaturesResponse:
    context.require(Operation.ALTER, CLUSTER)
    updates = [
        FeatureUpdate(update.feature, update.max_version_level, update.upgrade_type)
        for update in request.feature_updates
    ]
    changing = context.services.metadata.changes.update_features(
        updates, validate_only=request.validate_only, by=context.requester
    )
    await within(request.timeout_ms, changing)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdateFeaturesResponse.UpdatableFeatureResult(feature=update.name, error_message=None) for update in updates
        ],
    )
