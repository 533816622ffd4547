"""What can go wrong, in words: errors that a user is meant to read, and bytes that cannot be."""


class UserError(Exception):
    """Something the user can put right: the message is the whole answer, so no traceback is shown.

    It is for the owner of this machine, and may quote what is private there. Only `public` may leave it.
    """

    public = "it cannot do that; its own log says why"
    is_of_own_code = False  # the user's: then the line says where, and the traceback of its cause how it got there

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        if public:
            self.public = public


class PublicError(UserError):
    """An error that quotes nothing of this machine: the other end may hear all of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text, public=text)


class DivergedError(PublicError):
    """The model left the finite numbers."""


class DecodeError(ValueError):
    """Bytes that are no encoded vector of the expected size."""


class MessageError(ValueError):
    """A message that does not say what it must."""


class NotKeptError(MessageError):
    """A message that is given a model which this side does not have: what comes next must be given none."""
