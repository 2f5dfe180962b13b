"""What any text world needs: batches, workers, the Gymnasium interface, scores, transcripts."""
