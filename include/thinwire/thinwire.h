// All of the public API.
#pragma once

#include "thinwire/collective.h"
#include "thinwire/communicator.h"
#include "thinwire/errors.h"
#include "thinwire/hosts.h"
#include "thinwire/layout.h"
#include "thinwire/link.h"
#include "thinwire/pipelining.h"
#include "thinwire/reducer.h"
#include "thinwire/registry.h"
#include "thinwire/sockets.h"
#include "thinwire/spec.h"
#include "thinwire/step_time.h"
#include "thinwire/trace.h"
#include "thinwire/trial.h"
#include "thinwire/version.h"
