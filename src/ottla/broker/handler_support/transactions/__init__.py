"""What the handlers of transactions share: producer ids, requests to coordinators, verification."""
