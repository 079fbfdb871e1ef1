"""`ottla acl`: access control lists."""
