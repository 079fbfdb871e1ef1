"""The blocking API: the async classes for code without an event loop.

admin.py, producer.py and consumer.py are generated from the async classes by tools/make_blocking.py. Methods
that cannot be generated are in by_hand.py. loop.py runs the coroutines.
"""

from ottla.client.blocking.admin import Admin
from ottla.client.blocking.consumer import Consumer, DeserializingConsumer
from ottla.client.blocking.producer import Producer, SerializingProducer

__all__ = ["Admin", "Consumer", "DeserializingConsumer", "Producer", "SerializingProducer"]
