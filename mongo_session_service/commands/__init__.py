"""What ``mongo-session-service`` can do: each command is a call of the library."""
