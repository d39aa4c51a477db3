"""The devices that a simulation runs on, the processes that share them, and their memory."""
