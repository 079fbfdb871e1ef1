"""Changes of the metadata that requests ask for: pure rules, and the calls that commit them."""
