"""Push channels: slots in the receiver's memory, spent and returned as credits."""
