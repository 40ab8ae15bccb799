"""The attacks of the security review, repeated on any checkout of this project."""
