"""What a broker stores for the password of a user (SCRAM)."""

from ottla.security.sasl.scram_math import ScramCredential, ScramMechanism, salted_password


def new_credential(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    salted = salted_password(mechanism, password, salt, iterations)
    return ScramCredential.from_salted_password(mechanism, salted, salt, iterations)
