"""Documents, questions and the long contexts built of both. Nothing is imported here: every part is plain Python."""
