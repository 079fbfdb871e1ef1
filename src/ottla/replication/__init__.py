"""One replica among others: who leads, what is committed, who waits for it."""
