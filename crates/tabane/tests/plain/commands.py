"""Cells: real programs, by what they print and how they exit."""
import json, os, shutil, subprocess, tempfile

from cells import *

SILENT = "198.51.100.4"

def run(*words, input=None, seconds=30):
    """What it printed, and its exit status if that is not 0."""
    done = subprocess.run(words, input=input, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds)
    said = done.stdout.decode().strip()
    return f"{said} (exit {done.returncode})".strip() if done.returncode else said

def program(name, tool, proxied=()):
    """A cell that is there where the program is."""
    return cell(name, proxied) if shutil.which(tool) else lambda function: function

def curl(*words):
    return run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{size_download} from %{remote_ip}", *words)

for name, port in ("dual", 8000), ("unrouted6", 8000), ("silent6", 8000), ("dual", 8004):
    @program(f"curl of {name}.example port {port}", "curl")
    def fetches(way, name=name, port=port):
        return curl(f"http://{name}.example:{port}/file")

@program("curl of a closed port", "curl")
def fetches_closed(way):
    return curl(f"http://{V4}:{CLOSED}/")

@program("curl of an address that answers nobody, --connect-timeout 1", "curl")
def fetches_silent(way):
    return curl("--connect-timeout", "1", f"http://{SILENT}/")

@program("curl -T of 300 kB", "curl", PROXIED)
def uploads(way):
    token = os.urandom(8).hex()
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(300_000))
        file.flush()
        sent = run("curl", "-sS", "-T", file.name, "-w", "%{size_upload}", f"http://{V4}:8000/{token}")
    return f"{sent} sent, {report_of(way, token)} came"

def report_of(way, token):
    s = way.dial(V4, REPORTS)
    s.sendall(token.encode() + b"\n")
    return everything(s).decode()

@program("ffmpeg that sends 2.4 MB of raw video", "ffmpeg")
def streams(way):
    token = os.urandom(8).hex()
    source = ["-f", "lavfi", "-i", "testsrc2=size=160x100:rate=25", "-frames:v", "50"]
    to = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-method", "PUT", f"http://{V4}:8000/{token}"]
    said = run("ffmpeg", "-nostdin", "-v", "error", *source, *to)
    return f"{said}{report_of(way, token)} came"

def git(*words):
    # Of this test's directory, whoever asks.
    return run("git", "-c", "http.proxy=", *words)

for name in "dual", "unrouted6", "silent6":
    @program(f"git ls-remote of http://{name}.example", "git")
    def lists(way, name=name):
        return git("ls-remote", f"http://{name}.example:8000/repository.git", "HEAD")

@program("git clone by git://", "git")
def clones(way):
    with tempfile.TemporaryDirectory() as directory:
        said = git("clone", "-q", f"git://{V4}/repository.git", directory + "/clone")
        return said or " ".join(sorted(os.listdir(directory + "/clone")))

def status(*words, input=b""):
    return subprocess.run(words, input=input, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30).returncode

for what, words in ("an open port", (V4, str(ECHO))), ("a closed port", (V4, str(CLOSED))), ("nobody", (SILENT, "80")):
    @program(f"nc -z -w 2 to {what}", "nc")
    def probes(way, words=words):
        return f"exit {status('nc', '-z', '-w', '2', *words)}"

@program("nc -N of 100 kB, counted by the server", "nc")
def pipes(way):
    return run("nc", "-N", V4, str(COUNT_AT_END), input=bytes(100_000))

@program("iperf3 of 300 kB", "iperf3")
def measures(way):
    said = run("iperf3", "-c", V4, "-n", "300000", "-l", "10000", "-J")
    return f"{json.loads(said)['end']['sum_sent']['bytes']} sent"

@program("scp of 300 kB there and back", "dropbear")
def copies(way):
    key = os.environ["SSH_KEY"]
    options = ["-F", "none", "-q", "-O", "-i", key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    with tempfile.TemporaryDirectory() as directory:
        data = os.urandom(300_000)
        here, back = directory + "/here", directory + "/back"
        with open(here, "wb") as file:
            file.write(data)
        there = f"root@{V4}:{os.path.basename(directory)}"
        said = run("scp", *options, here, there) or run("scp", *options, there, back)
        if said:
            return said
        with open(back, "rb") as file:
            return "whole" if file.read() == data else "damaged"
