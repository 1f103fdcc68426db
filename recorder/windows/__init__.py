"""Windows: runs of steps of one episode, drawn from a replay buffer or a recording, as training takes them."""
