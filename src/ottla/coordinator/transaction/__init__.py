"""The transaction coordinator: who may write in a transaction, and how each one ends, on `__transaction_state`."""
