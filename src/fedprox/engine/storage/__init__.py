"""Where training rows and client state are stored."""
