"""The server's end of the link: a stream for every client, the tasks on their way, who may join."""
