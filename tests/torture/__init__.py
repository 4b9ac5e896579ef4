"""Bad input by the hundred: every command gets what no command should get, and must answer in one sentence.

``python -m tests.torture`` prints how many were tried, answered perfectly, ended in a traceback, or passed in silence.
"""
