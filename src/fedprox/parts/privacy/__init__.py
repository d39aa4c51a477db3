"""Differential privacy: the setting, and the accounting of what is released."""

from fedprox.parts.privacy.measures import NoisedMeasures
from fedprox.parts.privacy.setting import AdaptiveClip, Privacy

__all__ = ["AdaptiveClip", "NoisedMeasures", "Privacy"]
