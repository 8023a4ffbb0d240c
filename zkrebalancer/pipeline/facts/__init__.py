"""What happened, one idea a file: functions from data frames to a data frame, alike for batches and for streams."""
