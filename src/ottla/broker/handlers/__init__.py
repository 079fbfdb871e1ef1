"""One file per API: decode, call one thing in the layers below, encode. The broker serves the APIs listed here."""
