"""One file per API: unpack, call one thing below, pack."""
