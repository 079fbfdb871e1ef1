"""`ottla acl`: who may do what."""
