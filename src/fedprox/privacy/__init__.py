"""Differential privacy of clients: the setting, and the accounting of a run's releases."""

from fedprox.privacy.setting import AdaptiveClip, Privacy

__all__ = ["AdaptiveClip", "Privacy"]
