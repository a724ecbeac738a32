"""What any HTTP API needs: keys, bodies, field checks, errors, event streams, sockets."""
