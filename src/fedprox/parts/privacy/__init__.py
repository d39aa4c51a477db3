"""Differential privacy: the setting, and the accounting of what is released."""

from fedprox.parts.privacy.setting import AdaptiveClip, Privacy

__all__ = ["AdaptiveClip", "Privacy"]
