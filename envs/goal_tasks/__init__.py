"""One small file for each goal-conditioned task; each defines `TASK` (`envs.goals.GoalTask`)."""
