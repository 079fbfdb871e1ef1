"""A world to test in: an event loop whose time jumps, a network and a disk that fail on demand, all from one seed.

The production owners run inside unchanged. A failure prints its seed, and the seed replays it.
"""
