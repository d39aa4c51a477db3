"""The clients' devices: how fast they are, when they are on, and when rounds end."""
