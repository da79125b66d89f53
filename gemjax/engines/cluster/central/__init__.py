"""The central variable over several hosts: a commit's program is divided, and each part stays with its arrays."""
