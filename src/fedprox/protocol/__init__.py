"""The protocol that compared methods share, and a method under it."""
