"""What can go wrong, in words: errors that a user is meant to read, and bytes that cannot be."""


class UserError(Exception):
    """Something the user can put right: the message is the whole answer, so no traceback is shown."""


class PrivateError(UserError):
    """An error that quotes private data: it is for the owner of the data, and only `public` may leave the machine."""

    def __init__(self, text: str, public: str) -> None:
        super().__init__(text)
        self.public = public


class DivergedError(UserError):
    """The model left the finite numbers."""


class DecodeError(ValueError):
    """Bytes that are no encoded vector of the expected size."""


class MessageError(ValueError):
    """A message that does not say what it must."""
