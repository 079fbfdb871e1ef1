"""What a pipeline is: files and decorators, checked and turned into a model."""
