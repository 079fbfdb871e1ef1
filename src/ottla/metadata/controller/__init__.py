"""What the controller does without being asked: elections, in-sync sets, placement of replicas."""
