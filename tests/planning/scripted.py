"""A language model that says what a test wrote down, and remembers what it was asked."""

from jaxagent.planning.chat import ChatError, Reply, Usage, estimate_tokens


class ScriptedChat:
    """Says each of `replies` in turn, the last one for ever; exceptions are raised."""

    name = "scripted"

    def __init__(self, *replies, context=4096):
        self.replies, self.context, self.asked, self.options = list(replies), context, [], []
        self.stopped = False

    def count_tokens(self, messages):
        return estimate_tokens(messages)

    def stop(self):
        self.stopped = True

    def complete(self, messages, **options):
        if self.stopped:
            raise ChatError("stopped", "it was stopped")
        self.asked.append(list(messages))
        self.options.append(options)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return Reply(reply, Usage(len(str(messages)), len(reply)), 0.5)
