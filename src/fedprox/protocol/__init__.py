"""What compared methods share, and a method under it."""
