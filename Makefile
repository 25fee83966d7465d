# The words a new user types. Everything that decides anything is in `cargo xtask`.

CARGO ?= cargo
PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
TABANE := $(TARGET)/release/tabane

# Where rustup puts cargo, and where Debian keeps `ip` out of an ordinary user's sight.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

# What must be there, and the Debian package that brings it. A C compiler for the TLS library and
# the linker, clang for the eBPF hooks, usrsctp for SCTP, curl and ip for the demonstration and the
# tests.
DEPS := cc=gcc /usr/include/stdio.h=libc6-dev clang=clang curl=curl ip=iproute2 git=git \
	/usr/include/usrsctp.h=libusrsctp-dev
# Tests drive the dashboard in a real browser, queue and refuse packets, fetch from a real web
# server, and compare what programs see.
TEST_DEPS := /usr/bin/chromium=chromium chromedriver=chromium-driver iptables=iptables \
	nft=nftables nginx=nginx-light mptcpize=mptcpize openssl=openssl python3=python3 \
	nc=netcat-openbsd iperf3=iperf3 dropbear=dropbear-bin scp=openssh-client wget=wget \
	ffmpeg=ffmpeg tayga=tayga lintian=lintian apparmor_parser=apparmor etcd=etcd-server \
	etcdctl=etcd-client wireguard-go=wireguard-go wg=wireguard-tools ping=iputils-ping
# What `make bench` measures with and against.
BENCH_DEPS := iperf3=iperf3 mptcpize=mptcpize nginx=nginx-light aria2c=aria2

# What packages are made with; on Debian only the compiler's tools may be missing. What others'
# machines are built for with, `make packages` names where it is missing.
PACKAGE_DEPS := dpkg-deb=dpkg strip=binutils gzip=gzip
REPOSITORY_DEPS := dpkg-scanpackages=dpkg-dev gpg=gnupg

.PHONY: help deps build demo fleet-demo router test check ci bench packages image key repository install
.DEFAULT_GOAL := help

help:
	@echo 'make demo       links, a relay and an unmodified curl: alone, then bundled (under 60 s)'
	@echo 'make fleet-demo three relays on three members of etcd, one of each killed (root)'
	@echo 'make build      the binary: $(TABANE)'
	@echo 'make install    puts it into $(PREFIX)/bin (PREFIX=..., DESTDIR=...)'
	@echo 'make packages   Debian packages and archives, for what can be built here: target/packages'
	@echo 'make image      the relay as an OCI image: target/packages'
	@echo 'make router     a small static binary for routers: client, relay, gateway, web'
	@echo 'make repository KEY=ID   the packages as a signed apt repository: target/repository'
	@echo 'make test       every test; those that need privilege say so and step aside'
	@echo 'make check      formatting, lints, layers'
	@echo 'make bench      measures against plain TCP and kernel MPTCP (SCENARIO="twin cut")'
	@echo 'make deps       installs what is missing (Debian, Ubuntu); the others call it'

deps:
	@.ci/install-missing $(DEPS)

build: deps
	$(CARGO) build --release -p tabane

# Not the binary that `make build` leaves: one that is there in half the time (`profile.demo`).
demo:
	@.ci/install-missing $(filter-out %=libusrsctp-dev,$(DEPS))
	$(CARGO) build --profile demo -p tabane --no-default-features --features demo
	$(TARGET)/demo/tabane demo

fleet-demo: deps
	@.ci/install-missing $(TEST_DEPS)
	$(CARGO) test -p tabane --test bond fleet::a_fleet_goes_on -- --nocapture

router:
	@.ci/install-missing $(filter-out %=libusrsctp-dev,$(DEPS))
	$(CARGO) xtask router

test: deps
	@.ci/install-missing $(TEST_DEPS) $(PACKAGE_DEPS) $(REPOSITORY_DEPS)
	$(CARGO) xtask test

# `--locked`: a Cargo.lock that was not committed fails here, not at the user's.
check: deps
	$(CARGO) --locked xtask check

# Both, and instructions counted, as the server does through .ci/run. Everything is built once there:
# what incremental builds keep would only fill its disk.
ci: deps
	@.ci/install-missing $(TEST_DEPS) $(PACKAGE_DEPS) $(REPOSITORY_DEPS) valgrind=valgrind
	CARGO_INCREMENTAL=0 $(CARGO) --locked xtask ci

bench: build
	@.ci/install-missing $(BENCH_DEPS)
	$(CARGO) xtask bench $(SCENARIO)

# KEY=... says which of gpg's keys signs; asked for before anything is built.
key:
	@test -n "$(KEY)" || { echo 'make repository KEY=ID: which key signs' >&2; exit 1; }

repository: key packages
	@.ci/install-missing $(REPOSITORY_DEPS)
	$(CARGO) xtask repository --key "$(KEY)"

packages: deps
	@.ci/install-missing $(PACKAGE_DEPS)
	$(CARGO) xtask package

image:
	@.ci/install-missing $(filter-out %=libusrsctp-dev,$(DEPS))
	$(CARGO) xtask image

# Builds nothing that is there already, so that root needs no Rust: `make build`, then this.
install: | $(TABANE)
	install -D -m 755 $(TABANE) $(DESTDIR)$(PREFIX)/bin/tabane

$(TABANE):
	$(MAKE) build
