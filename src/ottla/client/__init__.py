"""The client library: async Admin, Producer and Consumer, and a blocking API generated from them."""
