"""`ottla group`: inspect consumer groups, measure their lag, preview assignments and reset offsets."""
