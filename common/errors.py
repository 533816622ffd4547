"""The one kind of error that a user is meant to read."""


class UserError(Exception):
    """Something the user can put right: the message is the whole answer, so no traceback is shown."""


class PrivateError(UserError):
    """An error that quotes private data: it is for the owner of the data, and only `public` may leave the machine."""

    def __init__(self, text: str, public: str) -> None:
        super().__init__(text)
        self.public = public
