#!/usr/bin/env python3
"""Talks to a Troupe server through the official `openai` package, and asserts what comes back.

Prints a line for each thing checked. Exit code 0: all hold; 1: one did not, named on stderr.
Works with any served model, since it asks about the shape of answers and their repeatability.
"""

import argparse
import sys
import threading
import time

import openai

MESSAGES = [{"role": "user", "content": "Write a short story about a troupe of actors."}]
PROMPT = "Once upon a time"


def expect(condition, sentence):
    if not condition:
        raise AssertionError(sentence)


def expect_error(kind, sentence, call, **fields):
    """`call` must raise `kind`, whose attributes include `fields`."""
    try:
        call()
    except kind as problem:
        for name, value in fields.items():
            found = getattr(problem, name)
            expect(found == value, f"{sentence}: {name} is {found!r}, not {value!r}")
        expect(problem.body and problem.body.get("message"), f"{sentence}: the error has no message")
        return
    raise AssertionError(f"{sentence}: no {kind.__name__} was raised")


def lists_models(client, model):
    names = [each.id for each in client.models.list()]
    expect(names == [model], f"models.list() gave {names}")
    expect(client.models.retrieve(model).id == model, "models.retrieve gave another model")
    expect_error(openai.NotFoundError, "an unknown model", lambda: client.models.retrieve("no/such-model"),
                 code="model_not_found")


def answers_a_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16, seed=5,
                                            extra_body={"ignore_eos": True})
    expect(answer.object == "chat.completion", f"object is {answer.object}")
    expect(answer.id.startswith("chatcmpl-"), f"id is {answer.id}")
    expect(answer.model == model, f"model is {answer.model}")
    expect(answer.system_fingerprint, "system_fingerprint is missing")
    expect(abs(answer.created - time.time()) < 3600, "created is not now")
    choice = answer.choices[0]
    expect(choice.message.role == "assistant" and choice.message.content, "the message is empty")
    expect(choice.finish_reason in ("stop", "length"), f"finish_reason is {choice.finish_reason}")
    usage = answer.usage
    expect(usage.prompt_tokens > 0 and usage.completion_tokens == 16, f"usage is {usage}")
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"usage does not add up: {usage}")


def repeats_with_a_seed(client, model):
    def ask(seed):
        return client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=1.0, seed=seed)

    first, second = ask(20), ask(20)
    expect(first.choices[0].message.content == second.choices[0].message.content, "the same seed gave two answers")
    expect(first.system_fingerprint == second.system_fingerprint, "the fingerprint changed")
    drawn = ask(openai.NOT_GIVEN)
    expect(isinstance(drawn.seed, int), "the drawn seed is not reported")
    again = ask(drawn.seed)
    expect(again.choices[0].message.content == drawn.choices[0].message.content, "a reported seed did not repeat its answer")


def streams_a_chat(client, model):
    options = {"model": model, "messages": MESSAGES, "max_tokens": 24, "seed": 3}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    expect(chunks[0].choices[0].delta.role == "assistant", "the first chunk does not name the role")
    expect(all(chunk.object == "chat.completion.chunk" for chunk in chunks), "a chunk is of another kind")
    expect(len({chunk.id for chunk in chunks}) == 1, "the chunks have different ids")
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    expect(text == whole.choices[0].message.content, "the chunks do not join to the whole answer")
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    expect(finishes == [whole.choices[0].finish_reason], f"finish reasons are {finishes}")
    expect(chunks[-1].choices == [] and chunks[-1].usage == whole.usage, "the usage chunk is missing or differs")
    expect(all(chunk.usage is None for chunk in chunks[:-1]), "usage came early")


def streams_a_completion(client, model):
    options = {"model": model, "prompt": PROMPT, "max_tokens": 24, "seed": 3}
    whole = client.completions.create(**options)
    expect(whole.object == "text_completion" and whole.id.startswith("cmpl-"), "a completion of another kind")
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))
    expect(text == whole.choices[0].text, "the chunks do not join to the whole answer")
    by_ids = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=4, seed=3)
    expect(by_ids.usage.prompt_tokens > 0, "a prompt of token ids was not counted")


def stops_where_told(client, model):
    options = {"model": model, "prompt": PROMPT, "max_tokens": 24, "seed": 8, "temperature": 0}
    whole = client.completions.create(**options).choices[0].text
    if len(whole) < 4:
        return "the model said too little to try"
    # Greedy text is the same up to the stop string, which itself is left out.
    stop = whole[len(whole) // 2:][:3]
    cut = client.completions.create(**options, stop=[stop, "a string it will not say"]).choices[0]
    expect(cut.finish_reason == "stop", f"finish_reason is {cut.finish_reason}")
    expect(stop not in cut.text, "the stop string is in the answer")
    expect(whole.startswith(cut.text), "text before the stop string differs")
    return None


def reports_logprobs(client, model):
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, seed=1, logprobs=True,
                                            extra_body={"ignore_eos": True})
    tokens = answer.choices[0].logprobs.content
    expect(len(tokens) == answer.usage.completion_tokens, f"{len(tokens)} logprobs for {answer.usage}")
    expect(all(token.logprob <= 0 for token in tokens), "a logprob is above 0")
    joined = "".join(token.token for token in tokens)
    expect(answer.choices[0].message.content.startswith(joined), "the tokens do not join to the text")
    listed = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, seed=1, logprobs=1,
                                       extra_body={"ignore_eos": True})
    expect(len(listed.choices[0].logprobs.token_logprobs) == listed.usage.completion_tokens, "a logprob is missing")


def ignores_the_end_when_told(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=12, seed=1, extra_body={"ignore_eos": True})
    expect(answer.usage.completion_tokens == 12, f"usage is {answer.usage}")
    expect(answer.choices[0].finish_reason == "length", "finish_reason is not 'length'")


def refuses_what_it_must(client, model):
    def chat(**fields):
        options = {"model": model, "messages": MESSAGES, "max_tokens": 4, **fields}
        return lambda: client.chat.completions.create(**options)

    bad = openai.BadRequestError
    expect_error(openai.NotFoundError, "an unknown model", chat(model="no-such-model"), code="model_not_found")
    expect_error(bad, "a temperature of 3", chat(temperature=3), param="temperature")
    expect_error(bad, "two answers at once", chat(n=2), param="n")
    expect_error(bad, "five stop strings", chat(stop=list("abcde")), param="stop")
    expect_error(bad, "no messages", chat(messages=[]), param="messages")
    expect_error(bad, "a misspelt field", chat(extra_body={"max_token": 3}), param="max_token")
    expect_error(bad, "tools", chat(tools=[{"type": "function", "function": {"name": "f"}}]), code="unsupported_parameter")
    expect_error(bad, "zero tokens", chat(max_tokens=0), param="max_tokens")


def asks_for_the_key(client, model):
    stranger = client.with_options(api_key="not-the-key")
    expect_error(openai.AuthenticationError, "a wrong key", stranger.models.list, code="invalid_api_key")


def serves_many_at_once(client, model):
    def ask(seed):
        return client.completions.create(model=model, prompt=PROMPT, max_tokens=12, seed=seed).choices[0].text

    alone = [ask(seed) for seed in range(8)]
    together = [None] * 8

    def keep(seed):
        together[seed] = ask(seed)

    threads = [threading.Thread(target=keep, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(alone == together, "an answer changed because others ran beside it")


def survives_a_client_that_leaves(client, model):
    with client.completions.create(model=model, prompt=PROMPT, max_tokens=400, stream=True,
                                   extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    answers_a_chat(client, model)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True, help="such as http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="", help="the server's key, where it has one")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="for each request (default: %(default)s)")
    arguments = parser.parse_args()
    client = openai.OpenAI(base_url=arguments.base_url, api_key=arguments.api_key or "none",
                           timeout=arguments.timeout_s, max_retries=0)
    checks = [lists_models, answers_a_chat, repeats_with_a_seed, streams_a_chat, streams_a_completion, stops_where_told,
              reports_logprobs, ignores_the_end_when_told, refuses_what_it_must, serves_many_at_once,
              survives_a_client_that_leaves]
    if arguments.api_key:
        checks.append(asks_for_the_key)
    model = client.models.list().data[0].id
    print(f"openai {openai.__version__}, model {model}")
    failures = 0
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            note = check(client, model)
            print(f"ok      {name}" + (f" ({note})" if note else ""), flush=True)
        except (AssertionError, openai.OpenAIError) as problem:
            failures += 1
            print(f"FAILED  {name}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
    print(f"{len(checks) - failures} ok, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
