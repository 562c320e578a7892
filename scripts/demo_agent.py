#!/usr/bin/env python3
"""Shows an ADK agent whose sessions outlive its process, and what MongoDB holds.

A small agent talks in a first process, while a subscriber in this one receives each
change as it is committed. A second process continues the conversation and starts
another. In the end, what MongoDB holds is printed. The model is scripted, so no API key
is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import AsyncGenerator
from pprint import pformat
from typing import Any

APP, USER = "weather", "ada"
FIRST, SECOND = "monday", "tuesday"
QUESTIONS = ("I live in Lisbon.", "What is the weather?")  # in the first process
FORECASTS = {"today": ("sun", 24), "tomorrow": ("rain", 19)}
PATIENCE = 5  # seconds, unless the URI has less
LOOKS = {
    "first": "what the agent sets is pushed to this process once it is committed.",
    "second": "it has the conversation, and what the agent knew of the user.",
}
NEXT = (
    ("mongod", "starts a MongoDB; export the URI that it prints"),
    ("live", "shows sessions in a browser as they change"),
    ("doctor", "checks the server, your rights on it, and what is stored"),
)
NEXT_OF_KEPT = (
    ("live", "shows these sessions in a browser"),
    ("watch", "prints what changes from now on"),
    ("export --to sessions.jsonl", "writes all of it to a file"),
)
SILENT = "MongoDB did not answer for {:g} seconds."
ELSEWHERE = "Without --uri and MONGODB_URI, the demo starts a MongoDB of its own."
IN_COLOUR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def parse_arguments() -> argparse.Namespace:
    """Parse the arguments; exits if they ask for help, or make no sense."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--uri",
        default=os.environ.get("MONGODB_URI"),
        help="a MongoDB replica set to use, in a new database adk_demo_<id> that is"
        " dropped at the end; by default $MONGODB_URI, or else a throw-away MongoDB"
        " started for the demo",
    )
    parser.add_argument("--keep", action="store_true", help="do not drop that database")
    # How the demo starts its own processes.
    parser.add_argument("--part", choices=["first", "second"], help=argparse.SUPPRESS)
    new = f"adk_demo_{secrets.token_hex(4)}"
    parser.add_argument("--database", default=new, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.keep and not arguments.uri:
        parser.error("--keep needs --uri: a throw-away MongoDB cannot be kept")
    return arguments


# Before the imports below, so that --help answers where nothing is installed yet.
ARGUMENTS = parse_arguments()

try:
    import pymongo
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmRequest, LlmResponse
    from google.adk.runners import Runner
    from google.adk.tools import ToolContext
    from google.genai import types

    from mongo_session_service import (
        Change,
        MongoSessionService,
        MongoSessionServiceError,
        StorageUnavailableError,
        Subscription,
    )
    from mongo_session_service.embedded import EmbeddedReplicaSet, EmbeddedServerError
except ImportError as error:
    sys.exit(f"demo: {error}. Start scripts/demo, which installs what is needed.")


# The agent: an ordinary one, but for its model.

# ADK warns of a model that does not tell how many tokens it used.
NO_TOKENS = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=0, candidates_token_count=0
)


class ScriptedModel(BaseLlm):
    """Follows three rules instead of calling a server."""

    model: str = "scripted"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002  ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer as a model would, to exactly what ADK would send one."""
        latest = llm_request.contents[-1].parts[-1]
        if latest.function_response:
            reply = types.Part(text=latest.function_response.response["result"])
        elif moved := re.search(r"live in (\w+)", latest.text):
            call = {"city": moved[1]}
            reply = types.Part.from_function_call(name="remember_home", args=call)
        else:
            home = re.search(r"lives in (\w+)", llm_request.config.system_instruction)
            day = "tomorrow" if "tomorrow" in latest.text else "today"
            call = {"city": home[1], "day": day}
            reply = types.Part.from_function_call(name="get_weather", args=call)
        content = types.Content(role="model", parts=[reply])
        yield LlmResponse(content=content, usage_metadata=NO_TOKENS)


def remember_home(city: str, tool_context: ToolContext) -> str:
    """Notes where the user lives."""
    tool_context.state["user:home_city"] = city
    return f"Noted: you live in {city}."


def get_weather(city: str, day: str, tool_context: ToolContext) -> str:
    """Tells the weather of a city, today or tomorrow."""
    sky, celsius = FORECASTS[day]
    state = tool_context.state
    state["forecast"] = {"city": city, "sky": sky, "celsius": celsius}
    state["app:forecasts_given"] = state.get("app:forecasts_given", 0) + 1
    return f"{city} {day}: {sky}, {celsius} degrees."


AGENT = LlmAgent(
    name="weather_agent",
    model=ScriptedModel(),
    instruction="You tell the weather. The user lives in {user:home_city?}.",
    tools=[remember_home, get_weather],
    output_key="last_answer",
)


# What each of the two processes does.


async def first_part(service: MongoSessionService) -> None:
    """Start a conversation."""
    await service.create_session(app_name=APP, user_id=USER, session_id=FIRST)
    say(f"Session {FIRST!r} is new:")
    for question in QUESTIONS:
        await talk(service, FIRST, question)


async def second_part(service: MongoSessionService) -> None:
    """Continue the conversation, and start another."""
    session = await service.get_session(app_name=APP, user_id=USER, session_id=FIRST)
    count = len(session.events)
    say(f"Session {FIRST!r} is there, with {count} events; the agent knows the city:")
    await talk(service, FIRST, "And tomorrow?")
    session = await service.create_session(
        app_name=APP, user_id=USER, session_id=SECOND
    )
    say(f"Session {SECOND!r} is new; it begins with what its user and its app have:")
    say(f"  state  {session.state}", CYAN)
    await talk(service, SECOND, "What is the weather?")


async def talk(service: MongoSessionService, session_id: str, text: str) -> None:
    """Let the agent answer, and print the turn."""
    say(f"  {'user':6} {text}")
    runner = Runner(app_name=APP, agent=AGENT, session_service=service)
    message = types.UserContent(text)
    async for event in runner.run_async(
        user_id=USER, session_id=session_id, new_message=message
    ):
        for call in event.get_function_calls():
            named = ", ".join(f"{name}={value!r}" for name, value in call.args.items())
            say(f"  {'tool':6} {call.name}({named})", DIM)
        if event.is_final_response():
            say(f"  {'agent':6} {event.content.parts[0].text}", GREEN)


async def run_part(uri: str, database: str, part: str) -> None:
    """Do what one process does."""
    title(f"The {part} process, {os.getpid()}", LOOKS[part])
    async with MongoSessionService(uri, database=database) as service:
        await {"first": first_part, "second": second_part}[part](service)
    say(f"Process {os.getpid()} ends. Nothing is left in memory.", DIM)


# What is printed.

BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"


def say(text: str, style: str = "") -> None:
    """Print a line, at once and in one write: another process prints as well."""
    if IN_COLOUR and style:
        text = f"\033[{style}m{text}\033[0m"
    print(f"{text}\n", end="", flush=True)


def title(text: str, look: str = "") -> None:
    """Print a heading, and what to look at."""
    say(f"\n== {text} ".ljust(80, "="), BOLD)
    if look:
        say(f"Look: {look}", DIM)


def say_push(change: Change, delay: float) -> None:
    """Print the change of state that has been pushed here."""
    what = f"r{change.revision} sets {', '.join(change.state_delta)}"
    say(f"{'':9}pushed after {1000 * delay:.0f} ms: {what}", CYAN)


def show_stored(database: Any) -> None:
    """Print which collection holds what, as a plain driver reads it."""
    title("What MongoDB now holds", "state is one document per session, user and app.")
    for session in database.sessions.find().sort("_id"):
        name = session["_id"]["session_id"]
        count = database.events.count_documents({"_id.session_id": name})
        show(
            f"sessions     {name}, with {count} in events; its state:", session["state"]
        )
    for user in database.user_states.find():
        show(f"user_states  {user['_id']['user_id']}", user["state"])
    for app in database.app_states.find():
        show(f"app_states   {app['_id']}", app["state"])


def show_answer(collection: Any, query: dict[str, str]) -> None:
    """Print what anyone may ask, in mongosh say, and the answer."""
    title("Plain documents, so plain queries")
    say(f"db.{collection.name}.find({json.dumps(query)}, {{_id: 1}})")
    for found in collection.find(query, {"_id": 1}):
        say(f"    {found}", CYAN)


def show(name: str, value: Any) -> None:
    """Print a value below what names it."""
    say(name)
    say(textwrap.indent(pformat(value, width=76, sort_dicts=False), " " * 4), CYAN)


def show_change() -> None:
    """Print what an app has to change."""
    title("The one line an ADK app changes, besides its import")
    say("- session_service = InMemorySessionService()", RED)
    say('+ session_service = MongoSessionService("mongodb://...")', GREEN)


def show_next(database: str | None) -> None:
    """Print what to do next, in a database that was kept."""
    title("Next")
    options = f" --database {database}" if database else ""
    for command, does in NEXT_OF_KEPT if database else NEXT:
        say(f".venv/bin/mongo-session-service{options} {command}")
        say(f"    {does}", DIM)


# The whole demo, from outside those processes.


def demo(uri: str, database: str, *, keep: bool) -> None:
    """Run both parts in a database, and look at it after each."""
    asyncio.run(check_server(uri))
    with pymongo.MongoClient(uri) as client:
        say(f"Connected. Everything goes into a new database, {database}.", DIM)
        try:
            asyncio.run(run_watched(uri, database))
            asyncio.run(run_process(uri, database, "second"))
            show_stored(client[database])
            show_answer(client[database].sessions, {"state.forecast.sky": "rain"})
            show_change()
        finally:
            if not keep:
                client.drop_database(database)
    say(f"\nDatabase {database} is {'kept' if keep else 'dropped again'}.", DIM)
    show_next(database if keep else None)


async def check_server(uri: str) -> None:
    """Refuse a wrong URI, and a server that is not there, without waiting long."""
    async with MongoSessionService(uri) as service:
        try:
            async with asyncio.timeout(PATIENCE):
                await service.ping()
        except TimeoutError:
            raise StorageUnavailableError(SILENT.format(PATIENCE)) from None


async def run_watched(uri: str, database: str) -> None:
    """Run the first part, and show what is pushed to a subscriber here meanwhile."""
    async with (
        MongoSessionService(uri, database=database) as service,
        service.watch(APP) as changes,
        asyncio.TaskGroup() as both,
    ):
        delays = both.create_task(show_pushes(changes))
        both.create_task(run_process(uri, database, "first"))
    typical = 1000 * statistics.median(delays.result())
    count = len(delays.result())
    say(f"{count} changes were pushed, typically {typical:.0f} ms after their commit.")


async def show_pushes(changes: Subscription) -> list[float]:
    """Print what is set as it comes, until the agent has said all it will."""
    answers, delays = 0, []
    async for change in changes:
        delays.append(time.time() - change.time)
        if change.state_delta:
            say_push(change, delays[-1])
        answers += "last_answer" in change.state_delta
        if answers == len(QUESTIONS):
            break
    return delays


async def run_process(uri: str, database: str, part: str) -> None:
    """Run one part in a process of its own; exits if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(__file__, "--part", part, "--database", database),
        env=os.environ | {"MONGODB_URI": uri},  # a command line is for all to see
        start_new_session=True,  # so that Ctrl-C interrupts this process alone
    )
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        sys.exit(1)


def main() -> None:
    """Run the demo or, in a process that the demo started, one part of it."""
    uri, database = ARGUMENTS.uri, ARGUMENTS.database
    if ARGUMENTS.part:
        asyncio.run(run_part(uri, database, ARGUMENTS.part))
        return
    say("mongo-session-service: ADK sessions that outlive their process", BOLD)
    say("The agent's model is scripted: no API key, no network.")
    if uri:
        say("Connecting to MongoDB ...", DIM)
        demo(uri, database, keep=ARGUMENTS.keep)
        return
    say("Starting a throw-away MongoDB ...", DIM)
    with EmbeddedReplicaSet() as replica_set:
        demo(replica_set.uri, database, keep=False)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # as after "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except StorageUnavailableError as error:
        sys.exit(f"demo: {error.message} {ELSEWHERE}")
    except MongoSessionServiceError as error:
        sys.exit(f"demo: {error.message}")
    except EmbeddedServerError as error:
        sys.exit(f"demo: {error}")
