"""Secure sums: the operator sees the sum over nodes of a round's messages, and never one node's."""
