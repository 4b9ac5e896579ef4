"""The same examples in every run: a failure can be looked at, and a change is to blame for it."""

import signal

from hypothesis import settings

settings.register_profile("fedpals", derandomize=True)
settings.load_profile("fedpals")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, by every process that tests start, too
