"""Every option: name, parser, default, scope, meaning.

Tables only; who uses an option is elsewhere.
"""

__all__ = ["consumer_options", "option_values", "options", "policy_units", "topic_policies"]
