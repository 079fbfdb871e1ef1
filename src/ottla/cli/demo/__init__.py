"""`ottla demo`: an exactly-once pipeline on Spark whose parts are killed, and the proof of its output."""
