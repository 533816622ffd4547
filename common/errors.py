"""The one kind of error that a user is meant to read."""


class UserError(Exception):
    """Something the user can put right: the message is the whole answer, so no traceback is shown."""
