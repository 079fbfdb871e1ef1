"""Small simulated worlds that speak the words of the domain: groups, transactions, logs, producers, consumers."""
