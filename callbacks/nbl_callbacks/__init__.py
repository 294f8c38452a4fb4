"""Lightning callbacks for bandits and other online learners."""

from nbl_callbacks.progress import BanditProgressBar
from nbl_callbacks.protocols import Actor, Learner, Observer, Restartable, require

__all__ = ["Actor", "BanditProgressBar", "Learner", "Observer", "Restartable", "require"]
