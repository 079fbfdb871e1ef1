"""`ottla demo`: an exactly-once pipeline on Spark whose driver is killed halfway, and the proof of its output."""
