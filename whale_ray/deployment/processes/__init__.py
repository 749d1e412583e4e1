"""Workers and relays as plain processes of this machine."""
