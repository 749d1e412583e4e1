"""Workers, relays and the controller as Ray actors; Ray carries control messages only."""
